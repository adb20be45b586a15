"""A course: labs with holes to fill in, and a judge that runs the code in them. README.md here describes it."""
