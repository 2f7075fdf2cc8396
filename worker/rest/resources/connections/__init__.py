"""Which requests do connections answer, the logins that connectors share?"""
