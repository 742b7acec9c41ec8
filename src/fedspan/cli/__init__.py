"""The command line: parse, call, print. Each command has a module; main.py lists them. Nothing imports it."""
