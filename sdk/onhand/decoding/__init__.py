"""From logits to text: sampling, detokenization, stop strings, and the token loop over a DecoderRuntime."""
