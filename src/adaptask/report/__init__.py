"""From the records of runs to tables, plots and a page; no model and no torch."""
