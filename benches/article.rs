//! The benchmark of the article that this crate began with, and the loops written by hand.

mod common;

fn main() {
    common::bench([figures::article::group(300_000)]);
}
