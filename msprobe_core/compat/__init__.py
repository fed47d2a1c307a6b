"""The tables of mstt up to 8.x (generation A) and mindstudio-probe 26.x (generation C), for scripts that read them.

The formats are registered with the hook ``msprobe_register_tables``, see `formats`. Nothing below this room knows their
columns, words or files. Commands and functions of these tools that work on such tables are here as well.
"""
