"""One module for each command of `aquamam`; heavy imports wait inside `run`."""
