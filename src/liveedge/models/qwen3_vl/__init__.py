"""The Qwen3-VL dense family: configuration, pixels, vision tower, text model, weights, prompt."""
