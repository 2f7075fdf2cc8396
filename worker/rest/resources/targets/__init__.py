"""Which requests are about what a sink has written? Dead letters, comparisons with the source, maintenance of lakes."""
