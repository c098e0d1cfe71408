"""Chat templates: messages in, token ids out."""
