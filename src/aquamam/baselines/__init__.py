"""The paper's other systems, each a model whose call gives the same kind of posterior as AQuaMaM's.

`aquamam.checkpoints.checkpoint.KINDS` names them; each is imported only when it is asked for.
"""
