"""Laws of what models need besides arithmetic: embedding, pooling, dropout, parts of tensors, products."""
