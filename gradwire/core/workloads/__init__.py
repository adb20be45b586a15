"""Data sets, models, tasks and the plan that cuts the data into batches."""
