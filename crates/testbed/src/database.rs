//! A database for one test.

use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use queue_store::{Store, StoreConfig};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};
use tokio::sync::RwLock;

use crate::template;

/// Longer than any healthy test takes.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// Connections of a test's own statements.
const CONNECTIONS: u32 = 4;
/// Connections of each pool of the store that tests share; a server for tests has 100.
const STORE_CONNECTIONS: u32 = 8;

/// A fresh database with the current schema. Dropped at the end, with whoever is connected to it.
#[derive(Debug)]
pub struct TestDatabase {
    server: PgConnectOptions,
    name: String,
    pool: PgPool,
    store: Store,
    dropped: bool,
}

/// Runs a test on a database of its own; then the audit, which must find nothing; then drops the database.
///
/// Bounded by [`PATIENCE`]. The database goes also when the test panics.
pub async fn db_test(test: impl AsyncFnOnce(&TestDatabase)) {
    let _others = RUNNING.read().await;
    audited(test).await;
}

/// As [`db_test`], while no other test of this process runs: for what is counted for the whole server.
pub async fn db_test_alone(test: impl AsyncFnOnce(&TestDatabase)) {
    let _nobody = RUNNING.write().await;
    audited(test).await;
}

/// Held for reading by each test with a database, for writing by one that must be alone.
static RUNNING: RwLock<()> = RwLock::const_new(());

async fn audited(test: impl AsyncFnOnce(&TestDatabase)) {
    let db = TestDatabase::new().await;
    tokio::time::timeout(PATIENCE, async {
        test(&db).await;
        db.check().await;
    })
    .await
    .expect("the test ends in time");
    db.drop().await;
}

impl TestDatabase {
    /// Creates a database. Prefer [`db_test`], which cannot forget the audit.
    pub async fn new() -> Self {
        let server = PgConnectOptions::from_str(&server_url()).expect("DATABASE_URL is a URL");
        clean_once(&server).await;
        let name = template::create_database(&server).await.expect("DATABASE_URL's user may create databases");
        let options = server.clone().database(&name);
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect_lazy_with(options.clone());
        let store = Store::new(&config(options.to_url_lossy().into())).expect("the URL of a database");
        Self { server, name, pool, store, dropped: false }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.server.clone().database(&self.name).to_url_lossy().into()
    }

    /// The same database as another role with this password.
    pub fn url_as(&self, role: &str, password: &str) -> String {
        self.server.clone().database(&self.name).username(role).password(password).to_url_lossy().into()
    }

    /// The store that the test shares with nobody.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Another store, as another scheduler would have it.
    pub fn another_store(&self) -> Store {
        Store::new(&config(self.url())).expect("the URL of a database")
    }

    /// Connections for what the store has no function for: a look at rows, a back-dated time, a planted fault.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Executes statements.
    pub async fn run(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The number that a query gives.
    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// What the audit finds.
    pub async fn audit(&self) -> Vec<String> {
        let mut conn = self.pool.acquire().await.expect("connects");
        queue_store::audit(&mut conn).await.expect("the audit runs").expect("there are few enough jobs")
    }

    /// Asserts that every invariant of the storage holds.
    pub async fn check(&self) {
        assert_eq!(self.audit().await, Vec::<String>::new(), "the audit must find nothing");
    }

    async fn drop(mut self) {
        self.dropped = true;
        // Connections are ended by the server: waiting for those that a failed test still holds could take for ever.
        template::drop_database(&self.server, &self.name).await.expect("drops the test's database");
    }
}

impl Drop for TestDatabase {
    /// Reached without the drop before when a test panics.
    fn drop(&mut self) {
        if !self.dropped {
            let dropping = template::drop_database(&self.server, &self.name);
            if let Err(error) = blocking(dropping) {
                eprintln!("could not drop {}: {error}", self.name);
            }
        }
    }
}

/// Runs a future to its end where there is no runtime to wait on.
fn blocking<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(future)
        };
        scope.spawn(run).join().expect("no panic")
    })
}

/// Removes what killed runs left behind, once per process.
async fn clean_once(server: &PgConnectOptions) {
    static CLEANED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    CLEANED.get_or_init(|| clean(server.clone())).await;
}

async fn clean(server: PgConnectOptions) {
    let mut admin = PgConnection::connect_with(&server).await.expect("DATABASE_URL names a running PostgreSQL");
    template::remove_leftovers(&mut admin).await.expect("removes old test databases");
    admin.close().await.expect("closes");
}

/// Short bounds: a test that waits for long has failed.
fn config(url: String) -> StoreConfig {
    StoreConfig {
        url,
        connect_timeout: Duration::from_secs(3),
        statement_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        idle_in_transaction_timeout: Duration::from_secs(10),
        hot_connections: STORE_CONNECTIONS,
        read_connections: 2,
    }
}

/// The server that tests use: `DATABASE_URL`, whose user may create databases. Read here and nowhere else.
#[expect(clippy::disallowed_methods, reason = "a test has no command line; the runner names its server so")]
pub fn server_url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL names a PostgreSQL; `cargo xtask test` starts one")
}
