"""ReSSL: relational self-supervised learning."""
