"""How do different accelerators share the tensors of one network? AccPar (Song et al., HPCA 2020), in closed form."""
