"""How are PostgreSQL tables written? Rows and ledger in one transaction, staged by COPY."""
