"""What users of mindstudio-probe and mstt have in their scripts, and what stands for it here.

`table` holds it all: import paths, command names, tasks, members of the debugger. The other modules let Python, the
command line and the configuration look there.
"""
