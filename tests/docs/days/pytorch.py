"""A first day in PyTorch: numbers are rounded, a model trains in FP8, is quantized, saved, and loaded."""

import torch
from torch import nn

import qtorch
from qtorch.quantization import quantize_model
from qtorch.recipes import lower


def trained(recipe: str | None, data: torch.Tensor, labels: torch.Tensor) -> tuple[nn.Module, float]:
    """A small network after 60 steps, and its last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))
    if recipe:
        lower(model, qtorch.RECIPES[recipe])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), labels)
        loss.backward()
        optimizer.step()
    return model.eval(), loss.item()


def main() -> None:
    x = torch.tensor([0.1241, 500.0])
    assert qtorch.quantize(x, "e4m3fn:saturate").tolist() == [0.125, 448]
    torch.manual_seed(1)
    data = torch.randn(64, 1, 8, 8)
    labels = data.mean((1, 2, 3)).argsort().argsort() // 16  # four classes
    _, float32 = trained(None, data, labels)
    model, fp8 = trained("mxfp8_conv", data, labels)
    assert fp8 < 2 * float32 + 0.1 < 1.3, (fp8, float32)
    small = quantize_model(trained(None, data, labels)[0], calibrate=[data])
    torch.save(small.state_dict(), "small.pt")
    again = quantize_model(trained(None, data, labels)[0], calibrate=[data[:1]])
    again.load_state_dict(torch.load("small.pt"))
    assert torch.equal(small(data).view(torch.int32), again(data).view(torch.int32))
    right = (small(data).argmax(1) == labels).float().mean().item()
    torch.save(model.state_dict(), "trained.pt")
    model.load_state_dict(torch.load("trained.pt"))
    assert right > 0.9, right
    print(f"loss {float32:.3f} in float32, {fp8:.3f} in mxfp8_conv; {right:.0%} right in int8")


if __name__ == "__main__":
    main()
