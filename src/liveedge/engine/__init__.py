"""Prompt to tokens: slots, caches, scheduler, runner, loop."""
