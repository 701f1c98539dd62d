"""Numbers in a file draw the picture of the program that wrote them."""

from examples.pictures import Panel, Picture, main, read, save
from examples.quantized_report import Row, finish

DRAWN = Picture(
    "Lines", [Panel("x", "y", {"one": [[0, 1.5], [1, 2.5]]}, ["level", 2.0]), Panel("x", "z", {"two": [[0, 1]]})]
)


def test_numbers_are_kept(tmp_path):
    save(DRAWN, tmp_path / "quantized-a.json")
    assert read(tmp_path / "quantized-a.json") == DRAWN
    save(DRAWN, tmp_path / "at-once.svg")
    main(["--results", str(tmp_path), "--pictures", str(tmp_path)])
    assert (tmp_path / "quantized-a.svg").read_bytes() == (tmp_path / "at-once.svg").read_bytes()


def test_other_numbers_are_another_picture(tmp_path):
    save(DRAWN, tmp_path / "a.svg")
    save(DRAWN._replace(panels=DRAWN.panels[:1]), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()


def test_a_program_keeps_what_it_draws(tmp_path):
    rows = [Row("fp32", 97.5, 1000, 0.5), Row("int8", 96.0, 250, 0.25)]
    finish("Accuracy", rows, {"weights": {2: 50.0, 8: 96.0}}, str(tmp_path / "a.json"))
    lines = {"weights": [[2, 50.0], [8, 96.0]]}
    assert read(tmp_path / "a.json") == Picture("Accuracy", [Panel("bits", "test accuracy (%)", lines, ["fp32", 97.5])])
