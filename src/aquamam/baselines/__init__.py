"""The paper's other systems, each a model whose call gives the same kind of posterior as AQuaMaM's.

`base` and `encoder` are what they share; `ipdf`, `mog`, `bingham`, `vonmises`, `classification` and `flow` are the
systems. `aquamam.checkpoints.checkpoint.KINDS` names them; each is imported only when it is asked for.
"""
