"""The commands, one file each: parse, call, deliver; none imports torch before it must."""
