"""What commands print: tables, columns, the state of a federation."""
