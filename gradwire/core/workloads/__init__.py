"""What is trained: data sets, models and the plan that cuts the data into batches."""
