update lease_tokens set last = last + 1 returning last
