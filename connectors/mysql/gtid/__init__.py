"""Which transactions does a set of GTIDs hold? MySQL's sets and MariaDB's positions, and what both can be asked."""
