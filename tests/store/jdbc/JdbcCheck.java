import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.util.Arrays;
import java.util.Properties;

/** Uses the store as a JDBC tool does; prints one line per finding, for the test to compare. */
public final class JdbcCheck {
    private static final String TYPES =
        "SELECT toUInt64(18446744073709551615) AS u64, toInt32(-5) AS i32, 1.5 AS f64,"
        + " CAST(2.5 AS Nullable(Float32)) AS nf, CAST(NULL AS Nullable(Float32)) AS missing,"
        + " toDateTime64('2026-11-30 12:34:56.789', 3, 'UTC') AS dt64,"
        + " toDateTime('2026-11-30 12:34:56', 'UTC') AS dt, toDate('2026-11-30') AS d,"
        + " toLowCardinality('rack-01') AS lc,"
        + " CAST(NULL AS LowCardinality(Nullable(String))) AS lcmissing,"
        + " true AS b, toDecimal64('12.34', 2) AS dec,"
        + " toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0') AS id, ['x', 'y'] AS arr,"
        + " 'tab\\tand \\'quote\\'' AS s";

    private static Connection open(String url, String user, String password) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", user);
        properties.setProperty("password", password);
        return DriverManager.getConnection(url, properties);
    }

    private static void say(String name, Object value) {
        String text = value instanceof Object[] ? Arrays.toString((Object[]) value) : "" + value;
        System.out.println(name + "=" + text);
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        try (Connection owner = open(url, "rackpulse", System.getenv("OWNER_PASSWORD"))) {
            types(owner);
            parameters(owner);
            inserts(owner);
            errors(owner);
            longAnswer(owner);
            metadata(owner);
            cancel(owner);
        }
        try (Connection analyst = open(url, "analyst", System.getenv("ANALYST_PASSWORD"))) {
            analyst(analyst);
        }
        try (Connection nobody = open(url, "rackpulse", "wrong");
                Statement statement = nobody.createStatement()) {
            statement.executeQuery("SELECT 1");
            say("wrong_password", "let in");
        } catch (SQLException refused) {
            say("wrong_password", code(refused));
        }
    }

    /** The code of the error, or of the one behind it. */
    private static int code(Throwable thrown) {
        for (Throwable each = thrown; each != null; each = each.getCause()) {
            if (each instanceof SQLException && ((SQLException) each).getErrorCode() != 0) {
                return ((SQLException) each).getErrorCode();
            }
            if (each.getMessage() != null && each.getMessage().contains("Code: ")) {
                String rest = each.getMessage().split("Code: ", 2)[1];
                return Integer.parseInt(rest.split("\\D", 2)[0]);
            }
        }
        return -1;
    }

    private static void types(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery(TYPES)) {
            rows.next();
            say("u64", rows.getBigDecimal("u64"));
            say("i32", rows.getInt("i32"));
            say("f64", rows.getDouble("f64"));
            say("nf", rows.getFloat("nf"));
            rows.getFloat("missing");
            say("missing", rows.wasNull());
            say("dt64", rows.getTimestamp("dt64").toInstant());
            say("dt", rows.getTimestamp("dt").toInstant());
            say("d", rows.getDate("d"));
            say("lc", rows.getString("lc"));
            say("lcmissing", rows.getString("lcmissing"));
            say("b", rows.getBoolean("b"));
            say("dec", rows.getBigDecimal("dec"));
            say("id", rows.getString("id"));
            say("arr", rows.getArray("arr").getArray());
            say("s", rows.getString("s").replace("\t", "<TAB>"));
            ResultSetMetaData about = rows.getMetaData();
            say("columns", about.getColumnCount() + " " + about.getColumnTypeName(4));
            say("more", rows.next());
        }
    }

    private static void parameters(Connection connection) throws SQLException {
        String sql = "SELECT ? + 1, ?, ?, ? IS NULL";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setInt(1, 41);
            statement.setString(2, "it's \\ a 'quote'");
            statement.setTimestamp(3, Timestamp.valueOf("2026-01-02 03:04:05"));
            statement.setNull(4, java.sql.Types.VARCHAR);
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                say("param_int", rows.getInt(1));
                say("param_string", rows.getString(2));
                say("param_null", rows.getInt(4));
            }
        }
    }

    private static void inserts(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute("DROP TABLE IF EXISTS telemetry.jdbc");
            statement.execute("CREATE TABLE telemetry.jdbc (id UInt64, name LowCardinality(String),"
                + " power_w Nullable(Float32), at DateTime64(3, 'UTC'))"
                + " ENGINE = MergeTree ORDER BY id");
            say("update_count", statement.executeUpdate(
                "INSERT INTO telemetry.jdbc VALUES (1, 'a', 1.5, '2026-01-01 00:00:00.123')"));
        }
        String sql = "INSERT INTO telemetry.jdbc (id, name, power_w, at) VALUES (?, ?, ?, ?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int number = 2; number < 1002; number++) {
                statement.setLong(1, number);
                statement.setString(2, "it's " + number % 3);
                if (number % 2 == 0) {
                    statement.setFloat(3, number / 2.0f);
                } else {
                    statement.setNull(3, java.sql.Types.FLOAT);
                }
                statement.setString(4, "2026-01-01 00:00:00.5");
                statement.addBatch();
            }
            say("batch", statement.executeBatch().length);
        }
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT count(), uniqExact(id),"
                    + " countIf(power_w IS NULL), sum(power_w), uniqExact(name), max(at)"
                    + " FROM telemetry.jdbc")) {
            rows.next();
            say("stored", rows.getLong(1) + " " + rows.getLong(2) + " " + rows.getLong(3) + " "
                + rows.getDouble(4) + " " + rows.getLong(5) + " "
                + rows.getTimestamp(6).toInstant());
        }
    }

    private static void errors(Connection connection) throws SQLException {
        for (String sql : new String[] {
                "SELECT * FROM telemetry.no_such_table", "SELEC 1", "SELECT throwIf(1)"}) {
            try (Statement statement = connection.createStatement()) {
                statement.executeQuery(sql);
                say("error", "none");
            } catch (SQLException expected) {
                say("error", code(expected));
            }
        }
    }

    private static void longAnswer(Connection connection) throws SQLException {
        long rows = 0;
        long sum = 0;
        try (Statement statement = connection.createStatement();
                ResultSet found = statement.executeQuery(
                    "SELECT number, toString(number) FROM numbers(500000)")) {
            while (found.next()) {
                rows++;
                sum += found.getLong(1) + found.getString(2).length();
            }
        }
        say("long", rows + " " + sum);
    }

    private static void metadata(Connection connection) throws SQLException {
        DatabaseMetaData about = connection.getMetaData();
        say("product", about.getDatabaseProductName());
        try (ResultSet tables = about.getTables(null, "telemetry", "jdbc", null)) {
            say("table", tables.next() ? tables.getString("TABLE_NAME") : "none");
        }
        StringBuilder names = new StringBuilder();
        try (ResultSet columns = about.getColumns(null, "telemetry", "jdbc", "%")) {
            while (columns.next()) {
                names.append(columns.getString("COLUMN_NAME")).append(' ');
            }
        }
        say("table_columns", names.toString().trim());
    }

    private static void cancel(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> {
                try {
                    while (running(connection) == 0) {
                        Thread.sleep(20);
                    }
                    statement.cancel();
                } catch (Exception failed) {
                    say("cancel_failed", failed);
                }
            });
            canceller.start();
            try {
                statement.executeQuery("SELECT count() /* to be cancelled */ FROM numbers(30)"
                    + " WHERE sleepEachRow(1) = 0 SETTINGS max_block_size = 1,"
                    + " function_sleep_max_microseconds_per_block = 60000000");
                say("cancelled", "no");
            } catch (SQLException stopped) {
                say("cancelled", code(stopped));
            }
            canceller.join();
        }
    }

    private static long running(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT count() FROM system.processes"
                    + " WHERE query LIKE '%to be ' || 'cancelled%'")) {
            rows.next();
            return rows.getLong(1);
        }
    }

    private static void analyst(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            try (ResultSet rows = statement.executeQuery("SELECT count() FROM telemetry.jdbc")) {
                rows.next();
                say("analyst_count", rows.getLong(1));
            }
            statement.execute("DROP TABLE telemetry.jdbc");
            say("analyst_drop", "let");
        } catch (SQLException refused) {
            say("analyst_drop", code(refused));
        }
    }
}
