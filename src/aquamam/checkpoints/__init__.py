"""Models on disk, and the bundled ones: `checkpoint` builds, saves and loads models of every kind,
`original` imports the weights of the original AQuaMaM repository."""
