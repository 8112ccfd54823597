"""What every part stands on: errors, clock, mailbox, tasks. Standard library only."""
