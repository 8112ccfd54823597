"""Model families: torch in, torch out. Knows no request and no frame."""
