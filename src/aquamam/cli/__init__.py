"""The command line: `main` finds the command and holds what they share, each other module is one.

Heavy imports wait inside functions, so that help and completion are quick.
"""
