"""The paper's experiments, one module each; a command of `aquamam reproduce` runs one and writes OUT/NAME.json and figures."""
