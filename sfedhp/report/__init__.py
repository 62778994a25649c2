"""Pages about runs: charts, tables and one self-contained HTML file, also live during the runs."""
