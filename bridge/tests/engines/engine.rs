//! Bridges to each engine.

use stream_demux_bridge::{Bridge, Builder, UrlError};
use test_servers::{Nats, Program, Redis, url};

pub(crate) trait Engine: Program {
    /// Starts a bridge to a server, or to a proxy before it.
    fn bridge(settings: Builder, port: u16) -> Result<Bridge, UrlError>;
}

impl Engine for Redis {
    fn bridge(settings: Builder, port: u16) -> Result<Bridge, UrlError> {
        settings.redis(&url::<Self>(port))
    }
}

impl Engine for Nats {
    fn bridge(settings: Builder, port: u16) -> Result<Bridge, UrlError> {
        settings.nats(&url::<Self>(port))
    }
}

/// Makes a test with each engine of each of these functions.
macro_rules! with_each_engine {
    ($($scenario:ident),+ $(,)?) => {
        mod redis {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario::<test_servers::Redis>().await;
                }
            )+
        }

        mod nats {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario::<test_servers::Nats>().await;
                }
            )+
        }
    };
}
pub(crate) use with_each_engine;
