"""What the product does, without HTTP: streams with leases, questions with evidence."""
