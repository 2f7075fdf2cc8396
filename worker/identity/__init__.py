"""Whom does an identity provider name? Its tokens and logins by OpenID Connect, checked and turned into callers with roles."""
