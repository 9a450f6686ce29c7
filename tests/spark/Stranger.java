import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.spark.SecurityManager;
import org.apache.spark.SecurityManager$;
import org.apache.spark.SparkConf;
import org.apache.spark.network.buffer.ManagedBuffer;
import org.apache.spark.network.netty.SparkTransportConf;
import org.apache.spark.network.shuffle.BlockFetchingListener;
import org.apache.spark.network.shuffle.ExternalBlockStoreClient;
import org.apache.spark.rpc.RpcAddress;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.rpc.RpcEnv;

/**
 * Somebody else on the machine, with Spark's own classes: tries each door and says who opened it.
 *
 * <p>Arguments are {@code tcp:PORT}, {@code unix:PATH} and {@code folder:PATH}. One line a try:
 * door, what was tried, and {@code in: …} or {@code out: …}. What gets in stops the executor, so the
 * blocks are asked for first.
 */
public class Stranger {
  private static final String HERE = "127.0.0.1";
  private static final String EXECUTOR = "LocalSchedulerBackendEndpoint";
  private static final String BLOCK = "broadcast_0_piece0"; // of the first job, what a task is
  private static final String GUESS = "0000000000000000000000000000000000000000000000000000000000000000";
  private static final int SECONDS_MAX = 8;

  private interface Try {
    String get() throws Exception;
  }

  public static void main(String[] doors) throws Exception {
    ExecutorService all = Executors.newCachedThreadPool();
    for (String door : doors) {
      String what = door.substring(door.indexOf(':') + 1);
      if (door.startsWith("unix:")) {
        all.execute(() -> say(door, "connect", () -> connected(what)));
      } else if (door.startsWith("folder:")) {
        all.execute(() -> say(door, "read", () -> readable(Path.of(what))));
      } else {
        int port = Integer.parseInt(what);
        all.execute(() -> say(door, "gateway", () -> gateway(port)));
        all.execute(() -> say(door, "block", () -> block(port, null)));
        all.execute(() -> say(door, "block with a guessed secret", () -> block(port, GUESS)));
        all.execute(() -> say(door, "rpc with a guessed secret", () -> rpc(port, GUESS)));
      }
    }
    all.shutdown();
    all.awaitTermination(10 * SECONDS_MAX, TimeUnit.SECONDS);
    for (String door : doors) { // last, since it ends what the others are about
      if (door.startsWith("tcp:")) {
        int port = Integer.parseInt(door.substring("tcp:".length()));
        say(door, "rpc", () -> rpc(port, null));
      }
    }
    System.exit(0); // Netty's threads would stay
  }

  private static void say(String door, String what, Try attempt) {
    String outcome;
    try {
      outcome = attempt.get();
    } catch (Throwable e) {
      outcome = "out: " + e.toString().lines().findFirst().orElse("");
    }
    synchronized (System.out) {
      System.out.println(door + "\t" + what + "\t" + outcome);
    }
  }

  private static SparkConf conf(String secret) {
    SparkConf conf = new SparkConf(false).set("spark.rpc.askTimeout", "5s")
        .set("spark.rpc.lookupTimeout", "5s").set("spark.network.timeout", "5s")
        .set("spark.network.auth.rpcTimeout", "5s").set("spark.shuffle.io.maxRetries", "0");
    return secret == null ? conf
        : conf.set("spark.authenticate", "true").set("spark.authenticate.secret", secret)
            .set("spark.network.crypto.enabled", "true");
  }

  private static SecurityManager security(SparkConf conf) {
    return new SecurityManager(conf, scala.Option.empty(),
        SecurityManager$.MODULE$.$lessinit$greater$default$3());
  }

  /** Stops whoever runs tasks, for good. */
  private static String rpc(int port, String secret) throws Exception {
    SparkConf conf = conf(secret);
    RpcEnv env = RpcEnv.create("stranger", HERE, HERE, 0, conf, security(conf), 0, true);
    try {
      RpcEndpointRef executor = env.setupEndpointRef(new RpcAddress(HERE, port), EXECUTOR);
      Object stop = Class.forName("org.apache.spark.scheduler.local.StopExecutor$")
          .getField("MODULE$").get(null);
      executor.askSync(stop, scala.reflect.ClassTag$.MODULE$.apply(Object.class));
      return "in: the executor is stopped";
    } finally {
      env.shutdown();
    }
  }

  private static String block(int port, String secret) throws Exception {
    SparkConf conf = conf(secret);
    CompletableFuture<String> outcome = new CompletableFuture<>();
    try (ExternalBlockStoreClient client = new ExternalBlockStoreClient(
        SparkTransportConf.fromSparkConf(conf, "shuffle", 1, scala.Option.empty(),
            scala.Option.empty()),
        security(conf), secret != null, 5000)) {
      client.init("stranger");
      client.fetchBlocks(HERE, port, "driver", new String[] {BLOCK}, new BlockFetchingListener() {
        @Override
        public void onBlockFetchSuccess(String id, ManagedBuffer data) {
          outcome.complete("in: " + id + " has " + data.size() + " bytes");
        }

        @Override
        public void onBlockFetchFailure(String id, Throwable e) {
          outcome.completeExceptionally(e);
        }
      }, null);
      return outcome.get(SECONDS_MAX, TimeUnit.SECONDS);
    }
  }

  /** py4j's: has Java say a system property, without the token. */
  private static String gateway(int port) throws IOException {
    String command = "c\nz:java.lang.System\ngetProperty\nsuser.name\ne\n";
    try (Socket socket = new Socket(InetAddress.getByName(HERE), port)) {
      socket.setSoTimeout(3000);
      socket.getOutputStream().write(command.getBytes(StandardCharsets.UTF_8));
      socket.getOutputStream().flush();
      String answer = new String(socket.getInputStream().readNBytes(2), StandardCharsets.UTF_8);
      return (answer.equals("!y") ? "in: " : "out: ") + "answered '" + answer + "'";
    }
  }

  private static String connected(String path) throws IOException {
    try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
      channel.connect(UnixDomainSocketAddress.of(path));
      return "in: connected";
    }
  }

  private static String readable(Path folder) throws IOException {
    try (Stream<Path> found = Files.list(folder)) {
      return "in: " + found.count() + " entries";
    } catch (AccessDeniedException e) {
      return "out: " + e;
    }
  }
}
