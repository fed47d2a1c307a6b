"""Host tensor reductions in C that read each element once. They are optional; without them the same work is slower."""
