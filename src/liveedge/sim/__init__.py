"""The simulated workcell: scenes, labels, questions, burned-in clock."""
