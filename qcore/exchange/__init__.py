"""Files for other programs: graphs in ONNX. Needs the package onnx, which is imported when it is used."""
