"""The paper's experiments; `aquamam reproduce NAME` runs one and writes OUT/NAME.json, figures and a page.

toy, peak, mog, objects (die and cylinder), throughput and figures (Figures 1 to 3) are the paper's; comparison has all
systems on distributions of known density. fit_pairs trains, samples tests, report writes.
"""
