"""What messages and workflows ask of models of flax. It needs flax, and imports nothing else of qjax."""
