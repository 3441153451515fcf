"""The paper's experiments; `aquamam reproduce NAME` runs one and writes OUT/NAME.json, figures and a page.

toy (and the appendix's peak and mog), objects (die and cylinder) and figures (1 to 3) are the paper's; comparison has
all systems on distributions of known density, and times IPDF. fit_pairs trains, samples tests, report writes.
"""
