"""Pages for a browser on the same machine: of a site for its administrator, and of runs for a researcher.

They show what the command line shows, and do what it does; nothing can be done here alone.
"""
