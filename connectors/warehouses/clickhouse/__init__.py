"""How do rows come into ClickHouse, which has no transactions?"""
