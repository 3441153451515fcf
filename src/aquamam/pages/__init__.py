"""Self-contained HTML pages: of a posterior (`posterior`), an evaluation (`evaluation`) and a fitted part (`fit`).

`page` writes them all, from the templates, styles and scripts in assets/.
"""
