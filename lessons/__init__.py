"""A course: labs with holes to fill in, and a judge that runs what was written. See README.md here."""
