"""Answers that must have a form: JSON, a choice, a pattern."""
