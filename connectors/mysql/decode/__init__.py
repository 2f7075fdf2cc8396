"""How do events of the binary log become changes? Values in Debezium's forms, tables with their keys, transactions with positions."""
