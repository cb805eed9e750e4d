//! The page at `/`: three files that are compiled in, without external resources.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::gateway::Gateway;

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

/// Lets the page load and connect to nothing but this gateway.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

pub fn routes() -> Router<Arc<Gateway>> {
    let html = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let file = |kind, text: &'static str| {
        get(async move || ([(header::CONTENT_TYPE, kind)], text).into_response())
    };
    Router::new()
        .route("/", get(async move || (html, HTML).into_response()))
        .route("/page.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/page.css", file("text/css; charset=utf-8", STYLE))
}
